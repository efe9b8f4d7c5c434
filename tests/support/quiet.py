"""Import the client libraries once, without the deprecation warnings of their own code.

Warnings are errors in these tests, which is right for our code; what a released client warns of
inside itself is not ours to mend.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import aiokafka  # noqa: F401
    import aiokafka.admin
    import kafka  # noqa: F401
    import kafka.admin  # noqa: F401
