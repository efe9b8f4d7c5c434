"""Import the client libraries once, without the deprecation warnings of their own code.

Warnings are errors in these tests, which is right for our code; what a released client warns of
inside itself is not ours to mend.
"""

import warnings
from importlib import import_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for library in ("aiokafka", "aiokafka.admin", "kafka", "kafka.admin"):
        import_module(library)
