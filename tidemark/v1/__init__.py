"""Generated from proto/tidemark/v1 by scripts/genproto; do not edit."""
