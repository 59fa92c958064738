unit sumtests;

{$mode objfpc}

interface

uses
  fpcunit, testregistry, sums;

type
  TSumTest = class(TTestCase)
  published
    procedure Adds;
    procedure AddsNothing;
  end;

implementation

procedure TSumTest.Adds;
begin
  AssertEquals(5, Add(2, 3));
end;

procedure TSumTest.AddsNothing;
begin
  AssertEquals(2, Add(2, 0));
end;

initialization
  RegisterTest(TSumTest);
end.
