test_that("adds", {
  expect_equal(add(2, 3), 5)
})

test_that("adds nothing", {
  expect_equal(add(2, 0), 2)
})
