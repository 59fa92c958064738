with Ada.Text_IO; use Ada.Text_IO;
with Sums;

procedure Test_Sums is
   procedure Check (Number, Name : String; Got, Expected : Integer) is
   begin
      Put_Line ((if Got = Expected then "ok " else "not ok ") & Number & " - " & Name);
      if Got /= Expected then
         Put_Line ("# expected" & Expected'Image & ", got " & Got'Image);
      end if;
   end Check;
begin
   Check ("1", "adds", Sums.Add (2, 3), 5);
   Check ("2", "adds nothing", Sums.Add (2, 0), 2);
   Put_Line ("1..2");
end Test_Sums;
