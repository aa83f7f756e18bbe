"""Marian's models (Junczys-Dowmunt et al. 2018), among them those of OPUS-MT (Tiedemann & Thottingal 2020)."""
