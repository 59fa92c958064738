## Recipe of Octave: run the %! blocks of one file with src/ on the path, write each block's outcome as TAP to $TAP_FILE;
## Octave tells failures.
##     octave-cli --norc --no-history --path src octave_test.m TEST_FILE
## A block is called by the comment in its first line (`%!test # adds`), or by that line. Blocks that only lend code to
## others (shared, function) come before each. A process that ends early leaves no TAP.
1;

function blocks = read_blocks (file)
  blocks = {};
  for line = strsplit (fileread (file), "\n")
    text = line{1};
    if (regexp (text, '^%!\S'))
      blocks{end+1} = [text "\n"];
    elseif (strncmp (text, "%!", 2) && ! isempty (blocks))
      blocks{end} = [blocks{end} text "\n"];
    endif
  endfor
endfunction

function name = name_of (block)
  first = strtrim (strtok (block, "\n"));
  comment = regexp (first, '[#%]\s*([^#%]+)$', "tokens", "once");
  name = strtrim (first(3:end));
  if (! isempty (comment) && numel (first) > numel (comment{1}) + 2)
    name = strtrim (comment{1});
  endif
endfunction

test_file = argv (){end};
tap_file = getenv ("TAP_FILE");
unsetenv ("TAP_FILE");
blocks = read_blocks (test_file);
is_lent = ! cellfun (@isempty, regexp (blocks, '^%!(shared|function|endfunction)'));
lent = ["" blocks{is_lent}];
lines = {};
failed = 0;
for block = blocks(! is_lent)
  path = [tempname(getenv ("SWE_RL_BUILD")) ".tst"];
  fid = fopen (path, "w");
  fputs (fid, [lent block{1}]);
  fclose (fid);
  [passed, total] = test (path, "quiet", stdout);
  is_good = total > 0 && passed == total;
  if (! is_good)
    failed++;
    printf ("FAIL %s\n", name_of (block{1}));
  endif
  status = {"not ok", "ok"}{is_good + 1};
  lines{end+1} = sprintf ("%s %d - %s\n", status, numel (lines) + 1, name_of (block{1}));
endfor
fid = fopen (tap_file, "w");
fputs (fid, [lines{:} sprintf("1..%d\n", numel (lines))]);
fclose (fid);
exit ((failed > 0) * (100 + min (99, failed)));
