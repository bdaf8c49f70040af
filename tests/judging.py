"""An output compared with the float64 reference of an op that has one output."""

from gpubench.backends.shared.reference import judge, references


def compare(op, precision, got, want, scale):
    return judge(op.tolerance, precision, got, want, scale)


def reference(op, inputs, folder, key):
    return references(op, inputs, folder, key)[0]
