"""`towernmt serve-keys`: make, list and remove the keys of those who may ask a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.serve.web.keys import add_key, read_keys, remove_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt serve-keys`."""
    parser.add_argument("action", choices=("add", "list", "remove"), help="what to do")
    parser.add_argument("name", nargs="?", help="of the caller, as logs have it")
    parser.add_argument("--keys", metavar="FILE", required=True, help="the file of keys, of `towernmt serve --keys`")
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="add: requests a minute (default: as `towernmt serve --rate` says)")
    parser.add_argument("--rate-characters", type=float, default=0.0, metavar="N",
                        help="add: characters a minute (default: as `towernmt serve --rate-characters` says)")
    parser.add_argument("--admin", action="store_true", help="add: the caller may exchange models")


def run(args: argparse.Namespace) -> int:
    """Change or show the file; returns the exit status."""
    path = Path(args.keys)
    if args.action == "list":
        if not path.is_file():
            raise SettingsError(f"{path}: there is no such file of keys.")
        for entry in read_keys(path):
            rates = [f"{value:g} {what} a minute" for value, what in (
                (entry.rate, "requests"), (entry.characters, "characters")) if value]
            print("  ".join([entry.name, *rates, *(["admin"] if entry.admin else [])]))
        return 0
    if not args.name:
        raise SettingsError(f"serve-keys {args.action}: name the caller, as `towernmt serve-keys {args.action} anna "
                            f"--keys {path}`.")
    if args.action == "remove":
        remove_key(path, args.name)
        return 0
    print(add_key(path, args.name, args.rate, args.rate_characters, args.admin))
    return 0
