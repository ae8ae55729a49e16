"""The questions: one file each, run as `python -m experiments.<name>`, constants in conf/."""
