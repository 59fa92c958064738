const std = @import("std");
const sum = @import("sum");

test "adds" {
    try std.testing.expectEqual(5, sum.add(2, 3));
}

test "adds nothing" {
    try std.testing.expectEqual(2, sum.add(2, 0));
}
