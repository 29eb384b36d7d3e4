"""Watch the loops of an unmodified Python job from inside, with the standard library of Python 3.9 or later.

The package is loaded by path, under another name, in the user's interpreter, and imports nothing else of Leadline. Its
own errors become remarks in its report and never disturb the job.
"""
