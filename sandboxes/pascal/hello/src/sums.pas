unit sums;

{$mode objfpc}

interface

function Add(A, B: Integer): Integer;

implementation

function Add(A, B: Integer): Integer;
begin
  Result := A - B;
end;

end.
