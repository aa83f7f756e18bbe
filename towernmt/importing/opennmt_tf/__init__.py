"""OpenNMT-tf's Transformers (Klein et al. 2017): its checkpoints of version 2."""
