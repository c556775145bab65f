"""Time: the only package that reads a clock or synchronises a device."""
