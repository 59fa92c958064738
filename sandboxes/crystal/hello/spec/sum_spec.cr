require "spec"
require "../src/sum"

describe Sum do
  it "adds" { Sum.add(2, 3).should eq(5) }
  it "adds nothing" { Sum.add(2, 0).should eq(2) }
end
