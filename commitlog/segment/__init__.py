"""One segment of a log, and the state that its batches build up."""
