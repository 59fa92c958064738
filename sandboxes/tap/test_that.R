# Recipe of R: run one file of testthat tests over all of R/, write each test's outcome as TAP to $TAP_FILE, failures to stdout.
#     Rscript --vanilla test_that.R TEST_FILE
# A process that ends early leaves no TAP.
file <- commandArgs(trailingOnly = TRUE)
tap_file <- Sys.getenv("TAP_FILE")
Sys.unsetenv("TAP_FILE")
# Taken before any code of the repository runs.
write_lines <- base::writeLines
leave <- base::quit
library(testthat)

environment <- new.env(parent = globalenv())
for (source in sort(list.files("R", pattern = "[.][Rr]$", full.names = TRUE), method = "radix")) {
  sys.source(source, environment)
}
results <- test_file(file, reporter = "silent", env = environment, stop_on_failure = FALSE)

lines <- character()
failed <- 0
for (result in results) {
  name <- if (is.null(result$test)) "code outside of any test" else result$test
  outcomes <- result$results
  is_bad <- vapply(outcomes, inherits, logical(1), c("expectation_failure", "expectation_error"))
  is_skip <- vapply(outcomes, inherits, logical(1), "expectation_skip")
  is_empty <- length(outcomes) == 0
  status <- if (any(is_bad) || is_empty) "not ok" else "ok"
  skip <- if (any(is_skip) && !any(is_bad)) " # SKIP" else ""
  lines <- c(lines, sprintf("%s %d - %s%s", status, length(lines) + 1, gsub("\n", " ", name), skip))
  if (status == "not ok") {
    failed <- failed + 1
    reason <- if (is_empty) "expects nothing" else gsub("\\s+", " ", conditionMessage(outcomes[[which(is_bad)[1]]]))
    cat(sprintf("FAIL %s: %s\n", name, reason))
  }
}
write_lines(c(lines, sprintf("1..%d", length(lines))), tap_file)
leave(status = if (failed == 0) 0 else 100 + min(99, failed))
