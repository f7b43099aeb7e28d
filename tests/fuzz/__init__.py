"""Fuzz targets: programs that look for input which a codec does not survive."""
