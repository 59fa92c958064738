/// Runs the unittest blocks of one module, writes each one's outcome as TAP to $TAP_FILE and failures to stdout. A block is
/// called by its attribute, `@("adds") unittest { ... }`, or by its line. A process that ends early leaves no TAP.
module tap;

import core.runtime : Runtime, UnitTestResult;
import std.algorithm.comparison : min;
import std.array : join, split;
import std.conv : to;
import std.file : write;
import std.process : environment;
import std.stdio : writefln;

// The runtime's own pass over all modules would stop at the first failure.
shared static this()
{
    Runtime.extendedModuleUnitTester = () => UnitTestResult(0, 0, true, false);
}

private string nameOf(alias test)()
{
    static foreach (attribute; __traits(getAttributes, test))
        static if (is(typeof(attribute) : string))
            return attribute;
    return "line " ~ __traits(getLocation, test)[1].to!string;
}

int runTests(alias mod)()
{
    const path = environment["TAP_FILE"];
    environment.remove("TAP_FILE");
    string[] lines;
    int failed;
    static foreach (test; __traits(getUnitTests, mod))
    {{
        enum name = nameOf!test;
        const number = (lines.length + 1).to!string;
        try
        {
            test();
            lines ~= "ok " ~ number ~ " - " ~ name;
        }
        catch (Throwable problem)
        {
            lines ~= "not ok " ~ number ~ " - " ~ name;
            failed++;
            writefln("FAIL %s: %s (%s:%d)", name, problem.msg.split.join(" "), problem.file, problem.line);
        }
    }}
    write(path, lines.join("\n") ~ "\n1.." ~ lines.length.to!string ~ "\n");
    return failed ? 100 + min(99, failed) : 0;
}
