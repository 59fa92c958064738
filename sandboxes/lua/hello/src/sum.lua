local sum = {}

function sum.add(a, b)
  return a - b
end

return sum
