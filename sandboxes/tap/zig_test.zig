//! Test runner of Zig: writes each test's outcome as TAP to stdout, which the recipe sends to descriptor 3; what tests say goes
//! to stderr. A panic or an early exit ends the process before the plan is written.
const builtin = @import("builtin");
const std = @import("std");
const testing = std.testing;

pub fn main(init: std.process.Init.Minimal) void {
    testing.environ = init.environ;
    var has_failed = false;
    var buffer: [4096]u8 = undefined;
    for (builtin.test_functions, 1..) |case, number| {
        // "test_sum.test.adds" is the test "adds" of the module test_sum.
        const start = if (std.mem.indexOf(u8, case.name, "test.")) |at| at + "test.".len else 0;
        const name = case.name[start..];
        testing.allocator_instance = .init(std.heap.page_allocator, .{ .canary = 0xc3a701ba, .check_write_after_free = true });
        testing.io_instance = .init(testing.allocator, .{ .argv0 = .init(init.args), .environ = init.environ });
        var outcome: []const u8 = "ok";
        var skip: []const u8 = "";
        var problem: []const u8 = "";
        if (case.func()) |_| {} else |err| switch (err) {
            error.SkipZigTest => skip = " # SKIP",
            else => problem = @errorName(err),
        }
        testing.io_instance.deinit();
        if (testing.allocator_instance.deinit() != 0) problem = "leaks memory";
        if (problem.len > 0) {
            outcome = "not ok";
            std.debug.print("FAIL {s}: {s}\n", .{ name, problem });
        }
        if (outcome.len > 2) has_failed = true;
        write(std.fmt.bufPrint(&buffer, "{s} {d} - {s}{s}\n", .{ outcome, number, name, skip }) catch unreachable);
    }
    write(std.fmt.bufPrint(&buffer, "1..{d}\n", .{builtin.test_functions.len}) catch unreachable);
    std.process.exit(@intFromBool(has_failed));
}

fn write(text: []const u8) void {
    _ = std.os.linux.write(1, text.ptr, text.len);
}
