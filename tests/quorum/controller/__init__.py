"""Tests of the controller, its clients and its server."""
