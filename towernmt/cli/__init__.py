"""The command line: `towernmt COMMAND`, a module a command. Nothing else imports it, but for examples."""
