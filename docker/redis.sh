#!/bin/sh
# Run Redis as Celery's broker: a message is in its log on disk before it counts as taken. REDIS_PASSWORD is its password.
set -eu
: "${REDIS_PASSWORD:?make .env by: make .env}"
# By standard input: arguments can be read by every process of the machine.
exec redis-server - <<END
requirepass $REDIS_PASSWORD
dir /var/lib/redis
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
bind * -::*
END
