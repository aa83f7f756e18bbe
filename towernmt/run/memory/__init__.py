"""The batch that fits into a memory limit: looked for, and measured in processes of their own."""
