# frozen_string_literal: true

module Textgrid
  # Colours by ANSI escape sequences ("\e[31m" turns red on, "\e[0m" turns all off).
  module Color
    CODES = { red: 31, green: 32, yellow: 33, bold: 1 }.freeze

    CODES.each do |name, code|
      define_singleton_method(name) { |text| "\e[#{code}m#{text}\e[0m" }
    end
  end
end
