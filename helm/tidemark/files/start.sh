#!/bin/sh
# Completes server.properties with what only the pod knows, formats its directory on the first start,
# and becomes the server. ROLE, POD_NAME, DOMAIN, PORT, NODE_ID_OFFSET, LOG_LEVEL, LISTENER, INTERNAL_PORT,
# RACK_* and EXTERNAL_* come from the pod.
set -eu
unset TIDEMARK_BOOTSTRAP_SERVER TIDEMARK_COMMAND_CONFIG # they are for people in the pod
ordinal=${POD_NAME##*-}
properties=/run/tidemark/server.properties
{
  cat "/etc/tidemark/$ROLE.properties"
  echo "node.id=$((ordinal + NODE_ID_OFFSET))"
  if [ "$ROLE" = controller ]; then
    echo "advertised.listeners=CONTROLLER://$POD_NAME.$DOMAIN:$PORT"
  else
    inside="" outside=""
    if [ -n "${INTERNAL_PORT:-}" ]; then inside=",INTERNAL://$POD_NAME.$DOMAIN:$INTERNAL_PORT"; fi
    if [ -n "${EXTERNAL_HOST:-}" ]; then
      port=$EXTERNAL_PORT
      if [ -n "${EXTERNAL_NODE_PORT:-}" ]; then port=$((EXTERNAL_NODE_PORT + ordinal)); fi
      outside=",EXTERNAL://$(echo "$EXTERNAL_HOST" | sed "s/{ordinal}/$ordinal/g"):$port"
    fi
    echo "advertised.listeners=${LISTENER:-PLAINTEXT}://$POD_NAME.$DOMAIN:$PORT$inside$outside"
  fi
  rack=${RACK_ZONE:-}
  if [ -n "${RACK_NAMES:-}" ]; then
    # shellcheck disable=SC2086  # the names are words
    set -- $RACK_NAMES
    shift $((ordinal % $#))
    rack=$1
  fi
  if [ -n "$rack" ]; then echo "broker.rack=$rack"; fi
} > "$properties"
tidemark storage format --cluster-id "$(cat /etc/tidemark/cluster-id)" --config "$properties" --ignore-formatted
exec tidemark server --config "$properties" --log-level "$LOG_LEVEL"
