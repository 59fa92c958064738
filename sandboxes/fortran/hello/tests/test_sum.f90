program test_sum
  use sum_module, only: add
  implicit none

  call check(1, 'adds', add(2, 3), 5)
  call check(2, 'adds nothing', add(2, 0), 2)
  print '(a)', '1..2'
contains
  subroutine check(number, name, got, expected)
    integer, intent(in) :: number, got, expected
    character(*), intent(in) :: name

    if (got == expected) then
      print '(a, i0, 2a)', 'ok ', number, ' - ', name
    else
      print '(a, i0, 2a)', 'not ok ', number, ' - ', name
      print '(a, i0, a, i0)', '# expected ', expected, ', got ', got
    end if
  end subroutine check
end program test_sum
