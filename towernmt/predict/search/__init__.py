"""Search: settings, interfaces, the decoding loop, strategies and processors, in that reading order."""
