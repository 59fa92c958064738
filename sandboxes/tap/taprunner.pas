{ Runs the tests that are registered with FPCUnit, writes each one's outcome as TAP to $TAP_FILE and failures to stdout.
  The recipe's program uses this unit and the test file's. A process that ends early leaves no TAP. }
unit taprunner;

{$mode objfpc}{$H+}

interface

procedure RunTap;

implementation

uses
  Classes, SysUtils, fpcunit, testregistry;

type
  TTapListener = class(TInterfacedObject, ITestListener)
  private
    FLines: TStringList;
    FNumFailed: Integer;
    FProblem: string;
    FIsSkipped: Boolean;
  public
    constructor Create;
    destructor Destroy; override;
    procedure AddFailure(ATest: TTest; AFailure: TTestFailure);
    procedure AddError(ATest: TTest; AError: TTestFailure);
    procedure StartTest(ATest: TTest);
    procedure EndTest(ATest: TTest);
    procedure StartTestSuite(ATestSuite: TTestSuite);
    procedure EndTestSuite(ATestSuite: TTestSuite);
    property Lines: TStringList read FLines;
    property NumFailed: Integer read FNumFailed;
  end;

constructor TTapListener.Create;
begin
  inherited Create;
  FLines := TStringList.Create;
end;

destructor TTapListener.Destroy;
begin
  FLines.Free;
  inherited Destroy;
end;

procedure TTapListener.AddFailure(ATest: TTest; AFailure: TTestFailure);
begin
  if AFailure.IsIgnoredTest then
    FIsSkipped := True
  else
    FProblem := AFailure.ExceptionMessage + ' ';
end;

procedure TTapListener.AddError(ATest: TTest; AError: TTestFailure);
begin
  FProblem := AError.ExceptionClassName + ': ' + AError.ExceptionMessage;
end;

procedure TTapListener.StartTest(ATest: TTest);
begin
  FProblem := '';
  FIsSkipped := False;
end;

procedure TTapListener.EndTest(ATest: TTest);
var
  Name: string;
begin
  Name := ATest.TestSuiteName + '.' + ATest.TestName;
  if FProblem <> '' then
  begin
    Inc(FNumFailed);
    FLines.Add(Format('not ok %d - %s', [FLines.Count + 1, Name]));
    WriteLn('FAIL ', Name, ': ', Trim(FProblem));
  end
  else if FIsSkipped then
    FLines.Add(Format('ok %d - %s # SKIP', [FLines.Count + 1, Name]))
  else
    FLines.Add(Format('ok %d - %s', [FLines.Count + 1, Name]));
end;

procedure TTapListener.StartTestSuite(ATestSuite: TTestSuite);
begin
end;

procedure TTapListener.EndTestSuite(ATestSuite: TTestSuite);
begin
end;

procedure RunTap;
var
  Listener: TTapListener;
  Kept: ITestListener; // the list of listeners counts no references
  Results: TTestResult;
begin
  Listener := TTapListener.Create;
  Kept := Listener;
  Results := TTestResult.Create;
  Results.AddListener(Kept);
  GetTestRegistry.Run(Results);
  Listener.Lines.Add(Format('1..%d', [Listener.Lines.Count]));
  Listener.Lines.SaveToFile(GetEnvironmentVariable('TAP_FILE'));
  if Listener.NumFailed > 99 then
    Halt(199);
  if Listener.NumFailed > 0 then
    Halt(100 + Listener.NumFailed);
end;

end.
