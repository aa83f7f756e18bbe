"""Storages of files: local disks, web servers and S3, decompression, and the local cache of remote files."""
