"""The modules that backends share with each other and with the worker; the parent uses none of them."""
