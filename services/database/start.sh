#!/bin/sh
# Makes the cluster at the first start, then becomes the server. SWE_RL_DATABASE_PASSWORD: of the user swe_rl.
set -eu
data=/var/lib/postgresql/data/cluster
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
: "${SWE_RL_DATABASE_PASSWORD:?set the password of the user swe_rl}"
if [ ! -s "$data/PG_VERSION" ]; then
  rm -rf "$data.new"
  (umask 077; printf '%s' "$SWE_RL_DATABASE_PASSWORD" >/tmp/password)
  "$bin/initdb" --pgdata "$data.new" --username swe_rl --pwfile /tmp/password --auth scram-sha-256 --encoding UTF8 --locale C.UTF-8
  rm /tmp/password
  echo 'CREATE DATABASE swe_rl OWNER swe_rl;' | "$bin/postgres" --single -D "$data.new" postgres >/dev/null
  echo 'host all swe_rl all scram-sha-256' >>"$data.new/pg_hba.conf"
  mv "$data.new" "$data"  # a first start that was cut short begins anew
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
