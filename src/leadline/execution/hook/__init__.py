"""Watch the loops of an unmodified Python job from inside: standard library only, Python 3.9 or later.

This package is loaded by its path, under another name, in the interpreter that the user's command names; it imports
nothing of Leadline but itself. Whatever goes wrong in it is a remark in its report, and never the job's affair.
"""
