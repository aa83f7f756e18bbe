"""The command line: `towernmt COMMAND`, a module a command; `commands` says where each lies.

Nothing else imports it, but for examples.
"""
