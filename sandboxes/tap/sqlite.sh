# Recipe of SQL: a database in memory is made by src/**/*.sql, then $SWE_RL_TEST fills the table tests, whose rows are the results.
# An error of SQL ends the run before the plan is written. No file of settings is read.
{
  find src -name '*.sql' | LC_ALL=C sort | while IFS= read -r source; do cat "$source" && echo; done
  echo 'CREATE TEMP TABLE tests (name TEXT UNIQUE NOT NULL, got, expected);'
  cat "$SWE_RL_TEST"
  cat << 'REPORT'

.mode list
.headers off
.separator "" "\n"
SELECT iif(got IS expected, 'ok ', 'not ok ') || rowid || ' - ' || name
  || iif(got IS expected, '', printf('%s# expected %s, got %s', char(10), quote(expected), quote(got)))
  FROM temp.tests ORDER BY rowid;
SELECT '1..' || count(*) FROM temp.tests;
REPORT
} | sqlite3 -init /dev/null -batch -bail :memory:
