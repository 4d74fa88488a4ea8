"""Files and directories made to do harm, each with the error that it has to end in.

`python -m attacks.make FOLDER` writes them all. The attacks are numbered by classes, which docs/threat-model.md lists.
"""
