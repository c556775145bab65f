"""Networks: shapes in, shapes out; they know no algorithm, no replay and no clock."""
