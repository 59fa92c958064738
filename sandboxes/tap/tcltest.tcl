# Recipe of Tcl: run one test file with tcltest, write each test's outcome as TAP to $TAP_FILE and failures to stdout.
#     tclsh tcltest.tcl TEST_FILE
# tcltest writes to a file of its own, so what tests print isn't read. A file that exits early leaves no TAP.
package require tcltest

namespace eval runner {
    variable file [lindex $::argv 0]
    variable log [file join $::env(SWE_RL_BUILD) tcltest.log]
    variable tap $::env(TAP_FILE)
    set ::argv {}
    set ::argc 0
    set ::argv0 $file
    tcltest::configure -verbose {body pass skip error} -outfile $log -tmpdir $::env(SWE_RL_BUILD)
}

# A failure is closed by a line with the test's name alone; the line that opens it has the description, too.
proc runner::report {} {
    variable log
    variable tap
    flush [tcltest::outputChannel]
    set channel [open $log]
    set lines [split [read $channel] \n]
    close $channel
    set channel [open $tap w]
    set count 0
    set failed 0
    foreach line $lines {
        if {[regexp {^\+\+\+\+ (\S+) PASSED$} $line -> name]} {
            puts $channel "ok [incr count] - $name"
        } elseif {[regexp {^\+\+\+\+ (\S+) SKIPPED: (.*)$} $line -> name reason]} {
            puts $channel "ok [incr count] - $name # SKIP $reason"
        } elseif {[regexp {^==== (\S+) FAILED$} $line -> name]} {
            puts $channel "not ok [incr count] - $name"
            incr failed
        }
    }
    puts $channel "1..$count"
    close $channel
    foreach line $lines {
        if {[regexp {^==== (.*) FAILED$} $line -> name]} {
            if {[regexp { } $name]} {puts "FAIL $name"}
        } elseif {[regexp {^(?:====|----) (.*)$} $line -> text]} {
            puts $text
        } elseif {$line ne "" && ![regexp {^\+\+\+\+ |\tTotal\t} $line]} {
            puts $line
        }
    }
    exit [expr {$failed ? 100 + min(99, $failed) : 0}]
}

source $runner::file
runner::report
