"""Remote storage managers: where the bytes of remote segments are kept."""
