# frozen_string_literal: true

# Plain-text tables and paragraphs for terminals.
module Textgrid
end

require "textgrid/color"
require "textgrid/table"
require "textgrid/wrap"
