"""The configuration: dataclasses, rules, parsing, and the files of conf/."""
