module pleach.example

go 1.20
