"""Packages, `NAME.towernmt.zip`: read, checked, unpacked once, and taken for a run. `towernmt.package` writes them."""
