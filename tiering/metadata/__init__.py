"""Remote log metadata: the states of remote segments, and the managers that store them."""
