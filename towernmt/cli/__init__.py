"""The command line: `towernmt COMMAND`. Nothing else imports it, except examples."""
