module sum_module
  implicit none
contains
  integer function add(a, b)
    integer, intent(in) :: a, b
    add = a - b
  end function add
end module sum_module
