module pleach

go 1.25
