local sum = require("sum")

describe("sum", function()
  it("adds", function() assert.are.equal(5, sum.add(2, 3)) end)
  it("adds nothing", function() assert.are.equal(2, sum.add(2, 0)) end)
end)
